"""The Go provider (CAPHV v0.10) as the contract describes it: what it leaves behind, and a stand-in for it."""
