"""Commands about files of this machine: config, completion."""
