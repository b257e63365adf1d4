"""Rows around the products of a MoE layer: routed ids grouped by expert, rows moved, results combined. One kernel each."""
