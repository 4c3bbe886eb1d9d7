"""What programs use: a client, its services, and the values that they give back."""
