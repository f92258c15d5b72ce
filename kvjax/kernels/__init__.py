"""Operations with more than one implementation: a folder an operation, a file an implementation."""
