"""What people see: tables, progress bars."""
