from frugax.compat.causal_training import prepare_static_args, restore_static_args


def test_arguments_are_restored_as_they_were():
    sets = [[frozenset({"a", 1, ("b", 2)}), frozenset()]]
    static = prepare_static_args(sets, [["x", "y"]], ["y"])
    assert restore_static_args(static) == (sets, [["x", "y"]], ["y"])
