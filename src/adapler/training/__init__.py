"""Training: saliencies, optimisers, schedules, selection of checkpoints."""
