"""A federation of 100 very unequal clients on scikit-learn's digits: uniform against adaptive sampling."""
