"""The hub's certificate authorities: phases, rotation, what agents trust."""
