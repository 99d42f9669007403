"""What ``export`` consists of: a client's network as ONNX, what stands beside it, and the script that reads both."""
