"""What the creation of logs needs beside names and nodes."""
