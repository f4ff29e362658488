"""What a server never imports: problems, algorithms, the arena, the paper's figures, benchmarks and pages."""
