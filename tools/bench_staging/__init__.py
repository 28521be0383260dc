"""What digesting every checkpoint costs: staging in one pass against two passes without a digest."""
