"""Hand out: the students' repository, made from the course's checkout."""
