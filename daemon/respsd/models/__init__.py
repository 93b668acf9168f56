"""Where models come from: folders, the Hugging Face hub, and the demo model; and the number format to run them in."""
