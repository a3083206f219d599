"""What an invoice adds up to. In whole cents, since a customer cannot pay half of one."""


def gross_cents(net_cents: int, tax_percent: int) -> int:
    """A net price plus its tax, rounded to the nearest cent, half a cent upwards."""
    return int(net_cents * (1 + tax_percent / 100))


def total_cents(net_prices_cents: list[int], tax_percent: int) -> int:
    """The sum of an invoice whose lines are rounded one by one."""
    return sum(gross_cents(net_cents, tax_percent) for net_cents in net_prices_cents)
