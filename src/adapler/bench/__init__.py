"""Speed measured beside what people would use instead: same texts, same threads, in turns."""
