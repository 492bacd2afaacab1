"""The paper's tables and figures on this machine: tasks x methods x seeds, one protocol for all."""
