"""Words used in demo rows."""

from __future__ import annotations

from typing import Final

AREAS: Final = (
    "Ginza",
    "Shibuya",
    "Ebisu",
    "Aoyama",
    "Kichijoji",
    "Yokohama",
    "Kamakura",
    "Kyoto Kawaramachi",
    "Umeda",
    "Namba",
    "Kobe Sannomiya",
    "Sakae",
    "Hakata",
    "Tenjin",
    "Sapporo Odori",
    "Sendai",
    "Hiroshima",
    "Kanazawa",
    "Naha",
    "Omiya",
)
SALONS: Final = ("Hana", "Kaze", "Tsuki", "Nami", "Sora")
FAMILY_NAMES: Final = (
    "Sato",
    "Suzuki",
    "Takahashi",
    "Tanaka",
    "Ito",
    "Watanabe",
    "Yamamoto",
    "Nakamura",
    "Kobayashi",
    "Kato",
    "Yoshida",
    "Yamada",
    "Sasaki",
    "Yamaguchi",
    "Matsumoto",
    "Inoue",
    "Kimura",
    "Hayashi",
    "Shimizu",
    "Saito",
)
GIVEN_NAMES: Final = (
    "Haruto",
    "Yuto",
    "Sota",
    "Yuki",
    "Ren",
    "Minato",
    "Riku",
    "Hana",
    "Yui",
    "Aoi",
    "Himari",
    "Rin",
    "Sakura",
    "Mei",
    "Akari",
    "Mio",
    "Kaede",
    "Naoko",
    "Keiko",
    "Tomoko",
)
NOTES: Final = (
    "Prefers the window seat.",
    "Allergic to ammonia; use the organic colour.",
    "Comes with her daughter, book two chairs.",
    "Asked for the same stylist as last time.",
    "Short on Fridays, keep it under an hour.",
    "Scalp is sensitive, lukewarm water only.",
    "Wants to go two tones lighter before the wedding.",
)
PRICES_YEN: Final = (2200, 3300, 4400, 5500, 6600, 8800, 9900, 12100, 16500, 22000)
