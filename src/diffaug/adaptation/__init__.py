"""Adapt a finished embedding model to a user's own labels, if that helps."""

from diffaug.adaptation.forecasts import Forecast, forecast
from diffaug.adaptation.result import AdaptResult
from diffaug.adaptation.run import adapt

__all__ = ["AdaptResult", "Forecast", "adapt", "forecast"]
