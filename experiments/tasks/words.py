"""The keys that needles are filed under: common, distinct, short English nouns. Their order is part of the prompts."""

WORDS = tuple(
    """
    amber anchor apple arrow autumn badge banner basil beacon berry bishop blossom bottle branch bridge bronze
    candle canyon carbon castle cedar cherry cinder circle clover cobalt comet copper coral cotton crater
    crystal dagger daisy desert diamond dolphin dragon eagle ember engine falcon feather fender forest fossil
    galaxy garden garnet ginger glacier granite hammer harbor hazel helmet hollow honey island ivory jacket
    jasmine jungle kettle ladder lagoon lantern laurel lemon linen magnet mango maple marble meadow mirror
    monkey needle nickel oasis ocean olive onion orchid oyster paddle pearl pepper pigeon pillow planet plum
    pocket prairie quartz rabbit raven ribbon river rocket saddle saffron salmon scarlet shadow silver spruce
    summit sunset temple thistle thunder tiger timber topaz tulip tunnel turtle valley velvet violet walnut
    willow window winter zephyr
    """.split()
)
