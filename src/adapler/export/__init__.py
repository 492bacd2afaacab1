"""A model as one ONNX graph with the removal inside, and the folder such a graph travels in."""
