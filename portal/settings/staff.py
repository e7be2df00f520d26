"""How Django's admin under /staff/ looks: the portal's colors (static/src/css/tokens.css) and font, and a way back."""

LIGHT_TO_DARK = (50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950)
GRAYS = "f6f7f9 eef0f3 dfe3e8 b6beca 939cab 5c6472 454c59 39414e 262c36 12151a 0b0d10"
BLUES = "eef0fe e0e4fd c7cefb a6b2ff 8c9bff 6273ee 3b4fe0 2f40bf 27359c 1b2442 141a33"


def _scale(colors: str) -> dict[str, str]:
    return {str(weight): f"#{color}" for weight, color in zip(LIGHT_TO_DARK, colors.split(), strict=True)}


def unfold(stylesheet: str) -> dict[str, object]:
    """The theme's settings. stylesheet: a static file that brings the font."""
    from django.templatetags.static import static

    return {
        "SITE_TITLE": "Database admin · Luthier",
        "SITE_HEADER": "Luthier",
        "SITE_SYMBOL": "inventory_2",
        "SITE_SUBHEADER": "Database admin",
        "SITE_DROPDOWN": [
            {"icon": "arrow_back", "title": "Admin console", "link": "/admin-console/"},
            {"icon": "home", "title": "Portal", "link": "/"},
        ],
        "COLORS": {"base": _scale(GRAYS), "primary": _scale(BLUES)},
        "BORDER_RADIUS": "6px",
        "STYLES": [lambda request: static(stylesheet)],
    }
