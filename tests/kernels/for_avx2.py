"""A plugin of pytest: the C++ kernels as a processor with AVX2 and no more gets them."""


def pytest_configure():
    from kvjax.kernels.native import library  # not before pytest has loaded its plugins, of which jaxtyping is one

    library.FLAGS = tuple("-march=haswell" if flag == "-march=native" else flag for flag in library.FLAGS)
