"""A client of the REST API for programs, and the command line on top of it; the standard library only.

The folder works on its own: copied to a machine without the platform, it needs nothing but Python 3.11.
"""

from luthier_client.client import Client, ClientError

__all__ = ["Client", "ClientError"]
