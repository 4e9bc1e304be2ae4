"""The Atoll operator: reconciles TrainingRun and LearnerUnit."""
