"""What users write: templates of it, and the laws that it must satisfy."""
