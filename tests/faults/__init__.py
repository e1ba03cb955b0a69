"""The fault matrix and the random strikes: ``make faults``, ``make faults RANDOM=1000``."""
