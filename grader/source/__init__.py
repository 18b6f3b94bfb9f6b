"""The text of a submission: read once, its steps and signature, and the policy it must keep."""
