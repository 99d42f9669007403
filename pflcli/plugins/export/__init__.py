"""Export one client's model: its networks as ONNX, its description, and a script that predicts with both."""
