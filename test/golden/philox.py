"""Philox4x32-10 with the keys of kernels/base/rng.h, for scripts that need the draws of the C code."""


def philox(seed, stream, block, row):
    """Block `block` of `stream` at row (environment, step, episode): four words."""
    key = [seed % 2**32, seed >> 32]
    c = [stream << 24 | block, *row]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b % 2**32, (a >> 32) ^ c[3] ^ key[1], a % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return c
