"""What a user runs. Installed, this folder is the package ``convattn`` with its console command."""
