"""Federations that nobody made for this: data of public packages, dealt to clients as they came.

``federation("flights")`` loads one; ``FEDERATIONS`` tells what there is.
"""

from sortition.lab.federations.data import FEDERATIONS, Federation, federation

__all__ = ["FEDERATIONS", "Federation", "federation"]
