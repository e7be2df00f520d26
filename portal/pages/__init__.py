"""The portal's pages: server-rendered, each region of them also served alone for refresh."""
