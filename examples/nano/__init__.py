"""Training of ``nano``, the demonstration checkpoint: corpus, tokenizer, tasks, model, training, export."""
