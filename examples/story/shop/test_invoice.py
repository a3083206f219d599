"""The shop's own small test suite."""

import unittest

from invoice import gross_cents, total_cents


class Invoice(unittest.TestCase):
    """What customers rely on."""

    def test_tax_is_added(self) -> None:
        """A plain price."""
        assert gross_cents(1000, 19) == 1190

    def test_rounds_to_the_nearest_cent(self) -> None:
        """1188.81 cents are 1189."""
        assert gross_cents(999, 19) == 1189

    def test_lines_add_up(self) -> None:
        """Each line is rounded, then they are added."""
        assert total_cents([999, 999, 1000], 19) == 2 * 1189 + 1190
