PREFIX_BYTE_OPERATOR: int
PREFIX_BYTE_ACCOUNT: int
PREFIX_BYTE_USER: int

class KeyPair:
    seed: bytes
    public_key: bytes
    def sign(self, input: bytes) -> bytes: ...

def from_seed(seed: bytes) -> KeyPair: ...
def encode_seed(src: bytes, prefix: int) -> bytes: ...
