"""Will adaptive sampling help? A diagnosis from norms, from a recorded run or from a problem."""
