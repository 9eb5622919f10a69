"""JSON Schemas at work: compiled once, and what they find said in the words of Kubernetes."""
