"""The paper's tables and figures as data, with their claims."""
