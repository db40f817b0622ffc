"""What runs under kfac-jax is not imported here."""

collect_ignore = ["kfac_jax_oracle.py"]
