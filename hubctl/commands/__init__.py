"""The commands, in groups; a module has one command or a few that share their code."""
