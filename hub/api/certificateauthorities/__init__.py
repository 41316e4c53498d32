"""The hub's certificate authorities: phases, rotation, and the CAs that agents trust."""
