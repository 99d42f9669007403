"""Tables and sentences for people, from stored metrics and audits."""
