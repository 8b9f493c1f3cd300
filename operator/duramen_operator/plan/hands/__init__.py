"""The plan's part about hands: who may write now, and what others' hands did to what it makes."""
