"""Label ranking: affine models that rank labels, under four losses."""
