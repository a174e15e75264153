"""Known attacks and known honest edits, run through the stages that judge every candidate."""
