"""Every kernel of a repository: a survey with their headroom, a ranked queue of searches, one patch."""
