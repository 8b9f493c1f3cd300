"""Who a process is: names, certificates, the folder they lie in, and the CA that issues them."""
