"""`kvjax study`: systems that manage a cache in different ways under one protocol, as one schema of rows.

Source: Comparative Characterization of KV Cache Management Strategies for LLM Inference, arXiv 2604.05012. Differs: every system is
a policy of this library on one machine; the paged engine is accounted for in bytes.
"""
