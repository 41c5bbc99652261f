"""The batch judge: questions through the Message Batches API, planned before they are made, taken up again after a crash."""
