"""DeepSeek-V4.1 configuration, checkpoint loading, reference model and cached step forward."""
